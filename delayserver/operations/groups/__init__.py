"""Operations of consumers and on their groups."""
