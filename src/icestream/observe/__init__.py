"""What happens, as facts first: events, and what is made of them."""
