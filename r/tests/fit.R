# Plain tests: each stops if it fails. What needs the command is left out, in words, where it is not on the PATH.
library(sottovoce)

expect <- function(...) stopifnot(...)
fails <- function(call, text, class = "error") {
  error <- tryCatch({
    force(call)
    NULL
  }, error = identity)
  if (is.null(error) || !grepl(text, conditionMessage(error)) || !inherits(error, class)) {
    stop("expected an error with \"", text, "\", got: ", if (is.null(error)) "none" else conditionMessage(error))
  }
}

# Declarations: no record decides them.
schema <- sottovoce_schema(age = c(18, 99), sex = c("F", "M"), visits = list(range = c(0, 30), shape = "smooth"),
                           readmitted = c("no", "yes"))
expect(identical(unclass(schema)$age, list(range = c(18, 99))), identical(unclass(schema)$sex$levels, c("F", "M")))
fails(sottovoce_schema(sex = factor("F")), "a factor is records")
fails(sottovoce_schema(age = 18), "range")
fails(sottovoce_schema(age = c(99, 18)), "low < high")
fails(sottovoce_schema(codes = 1:3), "declared as texts")
fails(sottovoce_schema(c(1, 2)), "name of its column")
fails(sottovoce_schema(a = c(1, 2), a = c(1, 2)), "twice")
toml <- sottovoce:::toml
expect(toml(list(range = c(0, 1.5), missing = TRUE)) == '{ "range" = [0, 1.5], "missing" = true }',
       toml("a \"b\" \\ \u00e9\n") == '"a \\"b\\" \\\\ \u00e9\\n"', toml(1e-5) == "1.0000000000000001e-05",
       toml(I("one")) == '["one"]', toml(Inf) == "inf")

# Formulas.
parts <- sottovoce:::parts_of
expect(identical(parts(readmitted ~ age + sex, schema)$features, c("age", "sex")),
       identical(parts(readmitted ~ ., schema)$features, c("age", "sex", "visits")),
       !parts(readmitted ~ age - 1, schema)$intercept)
fails(parts(~age, schema), "on the left")
fails(parts(readmitted ~ age:sex, schema), "joined by")
fails(parts(readmitted ~ log(age), schema), "joined by")
fails(parts(readmitted ~ age + weight, schema), "not declared in schema: weight")

set.seed(1)
n <- 4000
people <- data.frame(age = round(runif(n, 18, 99), 1), sex = factor(sample(c("F", "M"), n, TRUE)),
                     visits = sample(0:30, n, TRUE))
chance <- plogis((people$age - 60) / 15 + (people$sex == "M") - 0.5)
people$readmitted <- ifelse(runif(n) < chance, "yes", "no")
people$bill <- 2 * people$age + 30 * (people$sex == "M") + rnorm(n, 0, 5)
fails(private_glm(readmitted ~ age, people, 1, schema = list(age = c(18, 99))), "sottovoce_schema")
fails(private_glm(readmitted ~ age, people["age"], 1, schema), "not in data: readmitted")
fails(private_glm(readmitted ~ age, people, schema = schema), "give epsilon")
before <- options(sottovoce.command = "")
fails(private_glm(readmitted ~ age, people, 1, schema), "not on the PATH")
options(before)

if (is.null(getOption("sottovoce.command")) && !nzchar(Sys.which("sottovoce"))) {
  message("the command sottovoce is not on the PATH: what needs it is not tested")
  quit("no")
}

ledger <- tempfile(fileext = ".ledger")
ledger_create(ledger, "people", epsilon = 3, delta = 1e-5)
expect(nrow(ledger_history(ledger)) == 0)
fit <- private_glm(readmitted ~ age + sex + visits, people, epsilon = 2,
                   schema = sottovoce_schema(age = c(18, 99), sex = c("F", "M"), visits = c(0, 30),
                                             readmitted = c("no", "yes")), delta = 1e-6, ledger = ledger)
expect(identical(names(coef(fit))[1:2], c("(Intercept)", "age")), nobs(fit) == n, abs(fit$report$epsilon - 2) < 1e-6)
# An effect of 1/15 a year is far above the noise at epsilon 2: with its error it is off by six of them once in 10^8 fits.
within <- confint(fit, "age", level = 1 - 1e-8)
expect(within[1] < 1 / 15, within[2] > 1 / 15, all(confint(fit)[, 1] <= confint(fit, level = 0.99)[, 2], na.rm = TRUE))
account <- ledger_show(ledger)
expect(account$plans == 2, account$spent > 0, account$left < 3)
ledger_verify(ledger)
fails(private_glm(readmitted ~ age, people, epsilon = 9, schema = schema, ledger = ledger), "Nothing was charged",
      "sottovoce_refused")
charges <- ledger_history(ledger)
expect(nrow(charges) == 1, charges$plans == 2, charges$spent <= 3)

old <- predict(fit, data.frame(age = c(95, 20, NA), sex = c("M", "F", "F"), visits = 3))
expect(length(old) == 3, old[1] > old[2], all(old >= 0 & old <= 1, na.rm = TRUE))
score <- predict(fit, data.frame(age = c(95, 20), sex = c("M", "F"), visits = 3), type = "link")
expect(all.equal(plogis(score), old[1:2]))
linear <- coef(fit)[["(Intercept)"]] + coef(fit)[["age"]] * 95 + coef(fit)[["visits"]] * 3 + coef(fit)[["sex=M"]]
expect(all.equal(linear, score[1], tolerance = 1e-6))
expect(identical(levels(predict(fit, people[1:3, ], type = "class")), c("no", "yes")))
expect(grepl("epsilon = 2", privacy(fit)[["world"]]), any(grepl("It holds if", capture.output(print(summary(fit))))))
expect(any(grepl("Coefficients", capture.output(print(fit)))))
pdf(NULL)
plot(fit)
plot(fit, "shapes")

# A fit is a value: it can be saved, and its model is the command's.
kept <- tempfile()
saveRDS(fit, kept)
expect(identical(coef(readRDS(kept)), coef(fit)))
expect(file.exists(write_model(fit, tempfile(fileext = ".json"))))
# Records are gone with the fit.
expect(!length(Filter(dir.exists, list.files(tempdir(), "^sottovoce-", full.names = TRUE))))

amount <- suppressMessages(private_glm(bill ~ age + sex, people, epsilon = 5, family = "gaussian", folder = tempfile("kept"),
                                       schema = sottovoce_schema(age = c(18, 99), sex = c("F", "M"), bill = c(0, 300))))
expect(is.numeric(predict(amount, people[1:2, ])), abs(amount$table["age", "estimate"] - 2) < 1)
