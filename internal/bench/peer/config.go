// Package peer makes the servers that a benchmark compares a gateway with: for each
// a configuration as anybody would write it, and the Kubernetes objects to run it,
// one pure function for each.
package peer

import (
	"fmt"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"

	"qtls.dev/qtls/api/v1alpha1"
	"qtls.dev/qtls/internal/haproxy"
)

const (
	// folder of the configuration.
	folder = "/etc/qtls-peer"
	// certificates has a folder for each certificate, by its index.
	certificates = "/etc/qtls-peer-certificates"
	chainFile    = "tls.pem"
	keyFile      = chainFile + ".key" // where HAProxy looks for it
	// firstPort is that of the first certificate; each has a port of its own, for
	// servers differ in how they choose.
	firstPort = 8443
)

// Port of a certificate, by its index.
func Port(certificate int) int32 { return firstPort + int32(certificate) }

// configFile is what each program's configuration is called.
var configFile = map[v1alpha1.BenchmarkPeerServer]string{
	v1alpha1.BenchmarkPeerHAProxy: "haproxy.cfg",
	v1alpha1.BenchmarkPeerNGINX:   "nginx.conf",
}

// command of each program, which stays in the foreground.
func command(server v1alpha1.BenchmarkPeerServer) []string {
	if server == v1alpha1.BenchmarkPeerNGINX {
		return []string{"nginx", "-e", "stderr", "-c", folder + "/" + configFile[server]}
	}
	return []string{"haproxy", "-db", "-f", folder + "/" + configFile[server]}
}

// threads for a quota of CPUs, as many as the gateway's HAProxy takes; 0 without a
// quota.
func threads(quota *resource.Quantity) int {
	return int(min(quota.Value(), haproxy.MostThreads)) // Value rounds up
}

// Config of a server with so many certificates that offers groups, by OpenSSL's
// names. It takes so many threads, with 0 as many as it sees CPUs, and hands tickets
// out.
func Config(server v1alpha1.BenchmarkPeerServer, threads, count int, groups []string) string {
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	if server == v1alpha1.BenchmarkPeerNGINX {
		line("daemon off;")
		line("error_log stderr;")
		line("pid /tmp/nginx.pid;")
		workers := "auto"
		if threads > 0 {
			workers = strconv.Itoa(threads)
		}
		line("worker_processes %s;", workers)
		line("events {")
		line("    worker_connections 8192;")
		line("}")
		line("http {")
		line("    access_log off;")
		for _, kind := range []string{"client_body", "proxy", "fastcgi", "uwsgi", "scgi"} {
			line("    %s_temp_path /tmp/%s;", kind, kind)
		}
		line("    ssl_protocols TLSv1.2 TLSv1.3;")
		line("    ssl_ecdh_curve %s;", strings.Join(groups, ":"))
		for i := range count {
			line("    server {")
			line("        listen %d ssl;", Port(i))
			line("        listen [::]:%d ssl;", Port(i))
			line("        ssl_certificate %s/%d/%s;", certificates, i, chainFile)
			line("        ssl_certificate_key %s/%d/%s;", certificates, i, keyFile)
			line("        return 200 \"ok\\n\";")
			line("    }")
		}
		line("}")
		return b.String()
	}
	line("global")
	line("    maxconn 8192")
	if threads > 0 {
		line("    thread-hard-limit %d", threads)
	}
	line("    ssl-default-bind-options ssl-min-ver TLSv1.2")
	line("    ssl-default-bind-curves %s", strings.Join(groups, ":"))
	line("")
	line("defaults")
	line("    mode http")
	line("    timeout connect 5s")
	line("    timeout client 30s")
	line("    timeout server 30s")
	for i := range count {
		line("")
		line("frontend certificate-%d", i)
		line("    bind :::%d v4v6 ssl crt %s/%d/%s", Port(i), certificates, i, chainFile)
		line("    http-request return status 200 content-type text/plain string \"ok\\n\"")
	}
	return b.String()
}
