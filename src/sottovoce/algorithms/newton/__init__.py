"""`newton`: gradients in the metric of a Gram matrix."""
