"""The service's API and the sandbox's controls, a module for each section."""
