"""From stored runs to tables; nothing is drawn here."""
