"""Operations on whole stores: copy, verify, anchors, audit, backup, purge, erase, health."""
