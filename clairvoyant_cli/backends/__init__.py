"""The servers: what each can do, how it is spoken to, and how it is found."""
