"""`sgd`: gradients of secret samples."""
