"""What the analytics say, computed from the sessions alone, at the moment of the question.

Nothing here changes the workspace.
"""
