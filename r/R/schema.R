# What is public of a table. Nothing here looks at records.

sottovoce_schema <- function(...) {
  columns <- list(...)
  if (!length(columns)) stop("declare at least one column: sottovoce_schema(age = c(18, 99)).", call. = FALSE)
  if (is.null(names(columns)) || any(!nzchar(names(columns)))) {
    stop("each declaration has the name of its column: sottovoce_schema(age = c(18, 99)).", call. = FALSE)
  }
  twice <- names(columns)[duplicated(names(columns))]
  if (length(twice)) stop("declared twice: ", paste(unique(twice), collapse = ", "), ".", call. = FALSE)
  structure(Map(declared, columns, names(columns)), class = "sottovoce_schema")
}

# One column as the keys of a schema file: a range of two numbers, levels, or a list of the keys themselves.
declared <- function(column, name) {
  if (is.list(column)) {
    if (is.null(names(column)) || any(!nzchar(names(column)))) {
      stop(name, ": a list has the keys of a schema file, such as list(range = c(18, 99), shape = \"smooth\").",
           call. = FALSE)
    }
    return(column)
  }
  if (is.factor(column)) {
    stop(name, ": a factor is records; declare its levels if they are public: ", name, " = levels(...).",
         call. = FALSE)
  }
  if (is.logical(column)) column <- as.character(column)
  if (is.character(column)) {
    if (anyNA(column) || length(column) < 2 || anyDuplicated(column)) {
      stop(name, ": levels are two or more different texts, and NA is none.", call. = FALSE)
    }
    return(list(levels = column))
  }
  if (is.numeric(column) && length(column) == 2 && all(is.finite(column)) && column[[1]] < column[[2]]) {
    return(list(range = as.numeric(column)))
  }
  stop(name, ": a number has a range c(low, high), low < high; a category has levels c(\"a\", \"b\"). Codes that are ",
       "numbers are declared as texts.", call. = FALSE)
}

print.sottovoce_schema <- function(x, ...) {
  cat("declared, and public:\n")
  for (name in names(x)) cat(sprintf("  %s: %s\n", name, toml(unclass(x)[[name]])))
  invisible(x)
}

# A value of TOML. jsonlite writes texts, which TOML's basic strings read.
toml <- function(value) {
  if (is.list(value)) {
    if (is.null(names(value))) return(paste0("[", paste(vapply(value, toml, ""), collapse = ", "), "]"))
    keys <- vapply(names(value), text, "")
    return(paste0("{ ", paste(keys, "=", vapply(value, toml, ""), collapse = ", "), " }"))
  }
  if (inherits(value, "AsIs") || length(value) != 1) {
    return(paste0("[", paste(vapply(unclass(value), toml, ""), collapse = ", "), "]"))
  }
  if (is.na(value)) stop("NA cannot be declared.", call. = FALSE)
  if (is.logical(value)) return(if (value) "true" else "false")
  if (is.character(value)) return(text(value))
  if (is.infinite(value)) return(if (value > 0) "inf" else "-inf")
  if (value == round(value) && abs(value) < 2^53) return(sprintf("%.0f", value))
  sprintf("%.17g", value)
}

text <- function(value) as.character(jsonlite::toJSON(enc2utf8(value), auto_unbox = TRUE))
