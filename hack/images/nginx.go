package main

import (
	"context"
	"fmt"
	"strings"
)

func nginxVersions(ctx context.Context, c *container) (string, error) {
	out, err := c.exec(ctx, "sh", "-c", "nginx -V 2>&1")
	if err != nil {
		return "", err
	}
	nginx, openssl, err := parseNGINX(out)
	if err == nil && (!strings.HasPrefix(nginx, "1.26.") || !strings.HasPrefix(openssl, "3.5.")) {
		err = fmt.Errorf("found nginx %s on OpenSSL %s", nginx, openssl)
	}
	return fmt.Sprintf("nginx %s on OpenSSL %s", nginx, openssl), err
}

// nginxConfiguration listens on a unix socket, and writes nowhere but to /tmp, as the peers of benchmarks do.
const nginxConfiguration = `daemon off;
error_log stderr;
pid /tmp/nginx.pid;
events {}
http {
    access_log off;
    client_body_temp_path /tmp/client_body;
    proxy_temp_path /tmp/proxy;
    fastcgi_temp_path /tmp/fastcgi;
    uwsgi_temp_path /tmp/uwsgi;
    scgi_temp_path /tmp/scgi;
    ssl_ecdh_curve X25519MLKEM768;
    server {
        listen unix:/tmp/probe.sock ssl;
        ssl_certificate /mnt/probe.crt;
        ssl_certificate_key /mnt/probe.key;
        return 200;
    }
}
`

func nginxHandshake(ctx context.Context, c *container) (string, error) {
	if err := writeFiles(c.files, map[string][]byte{"nginx.conf": []byte(nginxConfiguration)}); err != nil {
		return "", err
	}
	out, err := c.exec(ctx, "sh", "-euc", `cd /mnt
		openssl req -x509 -newkey ml-dsa-65 -nodes -subj /CN=probe.example -days 1 -keyout probe.key -out probe.crt 2>/dev/null
		nginx -e stderr -c /mnt/nginx.conf & nginx=$!
		trap 'kill $nginx' EXIT
		for wait in $(seq 300); do [ -S /tmp/probe.sock ] && break; kill -0 $nginx; sleep 0.2; done
		openssl s_client -unix /tmp/probe.sock -groups X25519MLKEM768 -verify_return_error -CAfile /mnt/probe.crt </dev/null`)
	if err != nil {
		return "", err
	}
	return parseHandshake(out)
}
