"""Operations that show what the server knows. They change nothing."""
