"""Rankings that other systems are known for, behind one interface."""
