"""The kinds of audits, a room each; a room knows the corridor's nouns in `base`, and no other room."""
