"""What tests share: servers, proxies, stores, programs and judges."""
