"""What Slack is told."""
