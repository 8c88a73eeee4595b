# The fit: a formula, a table and what is public of it become a job, and the command's files become an object.

private_glm <- function(formula, data, epsilon, schema, family = c("binomial", "gaussian"), delta = 1e-5,
                        relation = "zero-out", ledger = NULL, account = NULL, standard_errors = NULL, model = list(),
                        about = list(), folder = NULL) {
  called <- match.call()
  if (missing(epsilon)) stop("give epsilon, the budget of this fit; 1 is usual.", call. = FALSE)
  if (!inherits(schema, "sottovoce_schema")) {
    stop("schema must be made by sottovoce_schema(): it declares what is public of each column.", call. = FALSE)
  }
  estimator <- if (is.null(model$estimator)) {
    c(binomial = "logistic", gaussian = "ridge")[[match.arg(family)]]
  } else model$estimator
  parts <- parts_of(formula, schema)
  response <- bounds_of_response(schema, parts$response)
  check_columns(data, c(parts$response, parts$features))
  if (is.null(standard_errors)) {
    standard_errors <- estimator %in% c("logistic", "ridge") && length(response$classes) <= 2 && is.null(model$alpha)
  }
  model <- c(list(estimator = estimator), model[setdiff(names(model), "estimator")],
             if (!parts$intercept) list(fit_intercept = FALSE), if (standard_errors) list(standard_errors = TRUE))
  kept <- !is.null(folder)
  folder <- private_folder(if (kept) folder else tempfile("sottovoce-"))
  table <- file.path(folder, "data.csv")
  on.exit(if (kept) unlink(table) else unlink(folder, recursive = TRUE))
  write_table(data[c(parts$features, parts$response)], table)
  job <- file.path(folder, "job.toml")
  writeLines(enc2utf8(job_of(list(
    data = c(list(file = "data.csv"),
             if (!is.null(ledger)) list(ledger = normalizePath(ledger, winslash = "/", mustWork = TRUE)),
             if (!is.null(account)) list(account = account)),
    model = model,
    privacy = list(epsilon = epsilon, delta = delta, relation = relation),
    bounds = response,
    schema = c(list(label = parts$response), list(columns = unclass(schema)[parts$features])),
    about = about
  ))), job, useBytes = TRUE)
  report <- run_json(c("fit", job, "--json", "--quiet"))
  saved <- file.path(folder, "job.json")
  read <- jsonlite::fromJSON(saved, simplifyVector = TRUE, simplifyDataFrame = FALSE)
  structure(list(
    call = called, formula = formula, features = parts$features, schema = schema, family = match.arg(family),
    coefficients = coefficients_of(read), table = if (standard_errors) table_of(saved), classes = read$classes,
    estimator = estimator, report = report, saved = paste(readLines(saved, warn = FALSE, encoding = "UTF-8"), collapse = "\n")
  ), class = "private_glm")
}

# The names in a formula: a response and columns joined by "+". "." is every declared column but the response.
parts_of <- function(formula, schema) {
  if (!inherits(formula, "formula") || length(formula) != 3 || !is.name(formula[[2]])) {
    stop("give a formula with a column on the left, such as readmitted ~ age + sex.", call. = FALSE)
  }
  response <- as.character(formula[[2]])
  others <- setdiff(names(schema), response)
  empty <- as.data.frame(setNames(rep(list(logical()), length(schema)), names(schema)), check.names = FALSE)
  read <- terms(formula, data = empty)
  features <- vapply(as.list(attr(read, "variables"))[-(1:2)], function(name) {
    if (is.name(name)) as.character(name) else NA_character_
  }, "")
  if (!length(features) || anyNA(features) || any(attr(read, "order") > 1) || !is.null(attr(read, "offset"))) {
    stop("the right side of the formula has columns joined by +; compute other terms as columns of the data, and ",
         "declare their ranges.", call. = FALSE)
  }
  undeclared <- setdiff(c(response, features), names(schema))
  if (length(undeclared)) {
    stop("not declared in schema: ", paste(undeclared, collapse = ", "), ". Declare a range c(low, high) or levels, ",
         "from what is known of the column and not from these records.", call. = FALSE)
  }
  list(response = response, features = features[features %in% others], intercept = attr(read, "intercept") == 1)
}

setNames <- stats::setNames

bounds_of_response <- function(schema, response) {
  keys <- unclass(schema)[[response]]
  if (!is.null(keys$levels)) return(list(classes = I(keys$levels)))
  if (!is.null(keys$range)) return(list(label_bound = keys$range))
  stop(response, ": the response is declared as c(low, high), or as its classes.", call. = FALSE)
}

check_columns <- function(data, needed) {
  if (!is.data.frame(data)) stop("data must be a data frame.", call. = FALSE)
  absent <- setdiff(needed, names(data))
  if (length(absent)) stop("not in data: ", paste(absent, collapse = ", "), ".", call. = FALSE)
  kinds <- vapply(data[needed], function(column) is.numeric(column) || is.factor(column) || is.character(column) ||
                    is.logical(column), NA)
  if (!all(kinds)) {
    stop("neither numbers nor texts: ", paste(needed[!kinds], collapse = ", "), "; convert these columns.",
         call. = FALSE)
  }
}

job_of <- function(tables) {
  unlist(lapply(names(tables), function(name) {
    keys <- tables[[name]]
    if (!length(keys)) return(character())
    c(paste0("[", name, "]"), paste(vapply(names(keys), text, ""), "=", vapply(keys, toml, "")), "")
  }))
}

coefficients_of <- function(read) {
  names <- c("(Intercept)", read$feature_names)
  if (is.matrix(read$coef)) {
    values <- cbind(read$intercept, read$coef)
    return(matrix(t(values), length(names), dimnames = list(names, read$classes)))
  }
  setNames(c(read$intercept, read$coef), names)
}

table_of <- function(saved) {
  rows <- run_json(c("coefficients", saved, "--json"), quiet = TRUE)
  pick <- function(key) vapply(rows, function(row) if (is.null(row[[key]])) NA_real_ else as.numeric(row[[key]]), 0)
  data.frame(estimate = pick("estimate"), std.error = pick("standard_error"), row.names = names(rows))
}
