"""A daemon made of random numbers: for `top --demo`, for the tests, and for the screenshots."""
