"""The relay beside the bridge that a team writes in an afternoon."""
