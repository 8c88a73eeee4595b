# Budgets on disk.

ledger_create <- function(path, dataset, epsilon, delta = 1e-5, relation = "zero-out") {
  run(c("ledger", "create", path, "--dataset", dataset, "--epsilon", number(epsilon), "--delta", number(delta),
        "--relation", relation))
  invisible(path)
}

ledger_show <- function(path) {
  accounts <- run_json(c("ledger", "show", path, "--json"))$accounts
  keys <- c("epsilon", "delta", "relation", "spent", "left", "plans")
  rows <- lapply(accounts, function(account) as.data.frame(account[keys], stringsAsFactors = FALSE))
  data.frame(account = names(accounts), do.call(rbind, unname(rows)), stringsAsFactors = FALSE)
}

ledger_history <- function(path) {
  charges <- run_json(c("ledger", "history", path, "--json"))$charges
  pick <- function(key, kind) vapply(charges, function(charge) convert(charge[[key]], kind), convert(NA, kind))
  data.frame(entry = pick("entry", "integer"), account = pick("account", "character"),
             plans = vapply(charges, function(charge) length(charge$plans), 0L),
             epsilon = pick("epsilon", "numeric"), spent = pick("spent", "numeric"), stringsAsFactors = FALSE)
}

ledger_verify <- function(path) {
  invisible(run(c("ledger", "verify", path)))
}

number <- function(value) sprintf("%.17g", value)
convert <- function(value, kind) switch(kind, integer = as.integer(value), numeric = as.numeric(value), as.character(value))
