"""What a run does next: decisions without Ray and without files."""
