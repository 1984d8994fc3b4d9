"""The recipes of docs/recipes, run against doubles of the tools that they are for."""
