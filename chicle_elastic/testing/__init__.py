"""What tests use: contracts that every implementation passes, and a simulated cluster. Nothing else imports it."""
