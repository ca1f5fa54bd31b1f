"""The client without a gateway: names, requests, pictures, addresses."""
