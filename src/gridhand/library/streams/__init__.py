"""Streams: graphs whose functions stay warm while items flow through them."""
