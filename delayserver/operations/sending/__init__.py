"""Operations that accept messages."""
