"""What is done with a model that is not trained further."""
