# What can be asked of a fitted model. All of it is computed from what was released.

print.private_glm <- function(x, digits = max(3L, getOption("digits") - 3L), ...) {
  cat("Private ", x$estimator, " model: epsilon = ", format(x$report$epsilon, digits = 4), ", delta = ",
      format(x$report$delta), ", ", x$report$relation, "\n\nCall: ", deparse1(x$call), "\n\nCoefficients:\n", sep = "")
  print(x$coefficients, digits = digits)
  invisible(x)
}

coef.private_glm <- function(object, ...) object$coefficients

formula.private_glm <- function(x, ...) x$formula

nobs.private_glm <- function(object, ...) object$report$public$records

confint.private_glm <- function(object, parm, level = 0.95, ...) {
  table <- intervals_of(object)
  if (!missing(parm)) table <- table[parm, , drop = FALSE]
  width <- qnorm((1 + level) / 2) * table$std.error
  shares <- c((1 - level) / 2, (1 + level) / 2)
  matrix(c(table$estimate - width, table$estimate + width), ncol = 2,
         dimnames = list(rownames(table), paste(format(100 * shares, trim = TRUE, digits = 3), "%")))
}

intervals_of <- function(object) {
  if (is.null(object$table)) {
    stop("this model has no standard errors, which take part of the budget; fit it with standard_errors = TRUE.",
         call. = FALSE)
  }
  object$table
}

summary.private_glm <- function(object, level = 0.95, ...) {
  table <- object$table
  if (!is.null(table)) {
    table <- cbind(as.matrix(table), confint(object, level = level))
    if (object$estimator == "logistic") table <- cbind(table, odds.ratio = exp(table[, "estimate"]))
  }
  structure(list(fit = object, table = table, privacy = privacy(object)), class = "summary.private_glm")
}

print.summary.private_glm <- function(x, digits = max(3L, getOption("digits") - 3L), ...) {
  cat("Call: ", deparse1(x$fit$call), "\n\n", sep = "")
  if (is.null(x$table)) {
    print(x$fit$coefficients, digits = digits)
    cat("\nWithout standard errors.\n")
  } else {
    print(x$table, digits = digits)
    cat("\nEstimates of a second, unshrunk fit; errors include the privacy noise. NA: not identified at this epsilon.\n")
  }
  cat("\n", nobs(x$fit), " records (public), solver ", x$fit$report$public$solver, "\n", sep = "")
  cat(strwrap(x$privacy[["world"]], prefix = "  "), sep = "\n")
  cat("It holds if:\n", strwrap(x$fit$report$assumptions, prefix = "  ", initial = "- "), sep = "\n")
  invisible(x)
}

privacy <- function(object, ...) UseMethod("privacy")

privacy.private_glm <- function(object, ...) {
  vapply(object$report$against, function(promise) promise$sentence, "")
}

predict.private_glm <- function(object, newdata, type = c("response", "link", "class"), ...) {
  type <- match.arg(type)
  if (missing(newdata)) stop("give newdata: a model keeps no records.", call. = FALSE)
  check_columns(newdata, object$features)
  folder <- private_folder()
  on.exit(unlink(folder, recursive = TRUE))
  files <- file.path(folder, c("model.json", "new.csv", "scores.csv"))
  write_model(object, files[[1]])
  write_table(newdata[object$features], files[[2]])
  logistic <- object$estimator == "logistic"
  if (type == "link" && length(object$classes) > 2) {
    stop("type = \"link\" is for two classes or a number.", call. = FALSE)
  }
  if (type != "class" && length(object$classes) && !logistic) {
    stop("this model has no probabilities; use type = \"class\".", call. = FALSE)
  }
  run(c("predict", files[1:2], "--output", files[[3]], if (logistic && type != "class") "--proba"), quiet = TRUE)
  read <- read.csv(files[[3]], check.names = FALSE, colClasses = c(prediction = "character"), encoding = "UTF-8",
                   na.strings = "")
  if (!length(object$classes)) return(as.numeric(read$prediction))
  if (type == "class") return(factor(read$prediction, levels = object$classes))
  chances <- as.matrix(read[-1])
  colnames(chances) <- object$classes
  if (length(object$classes) > 2) return(chances)
  if (type == "link") qlogis(unname(chances[, 2])) else unname(chances[, 2])
}

plot.private_glm <- function(x, which = c("intervals", "shapes"), level = 0.95, ...) {
  if (match.arg(which) == "intervals") plot_intervals(x, level, ...) else plot_shapes(x, ...)
  invisible(x)
}

plot_intervals <- function(x, level, ...) {
  table <- intervals_of(x)
  limits <- confint(x, level = level)
  known <- rev(which(rownames(table) != "intercept" & !is.na(table$estimate)))
  if (!length(known)) stop("no coefficient is identified at this epsilon.", call. = FALSE)
  rows <- seq_along(known)
  before <- par(mar = c(4, min(20, 2 + 0.5 * max(nchar(rownames(table)[known]))), 2, 1))
  on.exit(par(before))
  plot(range(limits[known, ], 0), c(0.5, length(rows) + 0.5), type = "n", yaxt = "n", ylab = "", bty = "n",
       xlab = paste0("coefficient, ", format(100 * level), "% interval"), ...)
  abline(v = 0, lty = 3)
  segments(limits[known, 1], rows, limits[known, 2], rows)
  points(table$estimate[known], rows, pch = 19)
  axis(2, rows, rownames(table)[known], las = 1, tick = FALSE)
}

# The effect of each declared number on the linear score, other columns at their first level or the middle.
plot_shapes <- function(x, points = 101, ...) {
  columns <- unclass(x$schema)[x$features]
  numbers <- names(Filter(function(keys) is.numeric(keys$range), columns))
  if (!length(numbers)) stop("no column has a declared range.", call. = FALSE)
  fixed <- lapply(columns, function(keys) {
    if (is.numeric(keys$range)) mean(keys$range) else as.character(unlist(c(keys$levels, keys$no))[1])
  })
  before <- par(mfrow = c(ceiling(length(numbers) / 2), min(2, length(numbers))), mar = c(4, 4, 1, 1))
  on.exit(par(before))
  middle <- as.data.frame(fixed, check.names = FALSE, stringsAsFactors = FALSE)
  people <- middle[rep(1, points * length(numbers)), , drop = FALSE]
  along <- split(seq_len(nrow(people)), rep(seq_along(numbers), each = points))
  for (i in seq_along(numbers)) {
    range <- columns[[numbers[[i]]]]$range
    people[[numbers[[i]]]][along[[i]]] <- seq(range[1], range[2], length.out = points)
  }
  score <- predict(x, people, type = if (x$estimator == "logistic") "link" else "response")
  for (i in seq_along(numbers)) {
    part <- score[along[[i]]]
    plot(people[[numbers[[i]]]][along[[i]]], part - mean(part), type = "l", xlab = numbers[[i]],
         ylab = "effect on the score", ...)
    abline(h = 0, lty = 3)
  }
}

write_model <- function(object, path) {
  writeLines(enc2utf8(object$saved), path, useBytes = TRUE)
  invisible(path)
}
