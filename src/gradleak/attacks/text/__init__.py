"""Attacks on models of text: the words and places that an update names, and the sentences that it spells."""
