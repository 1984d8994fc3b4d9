"""What Slack is told and what it answers; the sink only carries it to and fro (pure)."""
