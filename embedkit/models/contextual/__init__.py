"""The two-stage contextual model of CDE (Morris and Rush, 2024)."""
