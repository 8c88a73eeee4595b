# The command `sottovoce`: how it is found and run, and what its exit codes mean here.

command <- function() {
  words <- getOption("sottovoce.command", Sys.which("sottovoce")[[1]])
  if (!length(words) || !nzchar(words[[1]])) {
    stop("the command sottovoce is not on the PATH; install the Python package sottovoce, or set ",
         "options(sottovoce.command = \"...\") to its path.", call. = FALSE)
  }
  words
}

# Runs the command and returns what it printed. What it tells its user becomes messages; a failure becomes an error of
# the class sottovoce_error, and sottovoce_refused where a budget or a policy says no.
run <- function(arguments, quiet = FALSE) {
  words <- command()
  told <- tempfile("told-")
  on.exit(unlink(told))
  out <- suppressWarnings(system2(words[[1]], shQuote(c(words[-1], arguments)), stdout = TRUE, stderr = told))
  said <- if (file.exists(told)) readLines(told, warn = FALSE, encoding = "UTF-8") else character()
  status <- attr(out, "status")
  if (!is.null(status) && status != 0) {
    kinds <- c("2" = "sottovoce_usage", "3" = "sottovoce_refused", "4" = "sottovoce_wire", "5" = "sottovoce_ledger")
    kind <- kinds[as.character(status)]
    text <- paste(sub("^error: ", "", said), collapse = "\n")
    if (!nzchar(text)) text <- paste0(words[[1]], " ended with exit code ", status, " and said nothing.")
    stop(structure(class = c(if (!is.na(kind)) unname(kind), "sottovoce_error", "error", "condition"),
                   list(message = text, call = NULL)))
  }
  if (length(said) && !quiet) message(paste(said, collapse = "\n"))
  Encoding(out) <- "UTF-8"
  as.character(out)
}

run_json <- function(arguments, quiet = FALSE) {
  jsonlite::fromJSON(paste(run(arguments, quiet), collapse = "\n"), simplifyVector = TRUE, simplifyDataFrame = FALSE)
}

# A folder that this user alone may read, for records and what is made of them.
private_folder <- function(path = tempfile("sottovoce-")) {
  if (!dir.exists(path)) dir.create(path, mode = "0700")
  normalizePath(path, winslash = "/", mustWork = TRUE)
}

# Records in a file that this user alone may read. Cells have no line ends, as no level has.
write_table <- function(data, path) {
  before <- Sys.umask("077")
  on.exit(Sys.umask(before))
  texts <- vapply(data, function(column) is.factor(column) || is.character(column) || is.logical(column), NA)
  data[texts] <- lapply(data[texts], function(column) gsub("[\r\n]+", " ", enc2utf8(as.character(column))))
  numbers <- vapply(data, is.double, NA)
  data[numbers] <- lapply(data[numbers], function(column) ifelse(is.finite(column), sprintf("%.17g", column), NA))
  connection <- file(path, "w", encoding = "native.enc")
  on.exit(close(connection), add = TRUE)
  write.table(data, connection, sep = ",", row.names = FALSE, na = "", quote = which(texts), qmethod = "double",
              col.names = TRUE, fileEncoding = "UTF-8")
}
