"""Drawing what the analysis has computed; nothing is computed here."""
