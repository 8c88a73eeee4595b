"""What the papers prove, as functions of public numbers; each docstring is the formula."""
