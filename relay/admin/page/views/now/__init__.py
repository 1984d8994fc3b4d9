"""The first view, with the absences and the runbook."""
