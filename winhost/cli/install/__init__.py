"""Install Ubuntu beside Windows or instead of it."""
