"""Who calls: credentials, API keys, tokens of issuers, and the pages of logins."""
