package haproxy

// authority refuses requests for another name than those of the listener: a
// client may reuse a connection for a second name of its certificate (RFC 9110,
// 7.4), and would so get past what the other listener asks for. A port whose
// one listener takes every name has nothing to refuse.
func (r *renderer) authority(l listener, port int32, listeners []listener) {
	if !named(listeners) {
		return
	}
	r.names(port, listeners)
	// What is no name or address, a server may take for another listener's name.
	// (req.hdr would be what follows the last comma.)
	r.line("    http-request deny deny_status 400 if { req.hdr(host) -m found } !{ req.fhdr(host) -m reg -i '%s' }", authorityPattern)
	r.line("    http-request set-var(txn.authority) req.fhdr(host),host_only,rtrim(.),lower")
	r.lookUp("http-request", "txn.authority", "txn.listener", port, listeners)
	r.line("    http-request return status 421 content-type text/plain string \"Misdirected Request: this connection was opened for another host name.\\n\" unless { var(txn.listener) -m str %s }", r.label(l.Name))
}

// authorityPattern is a name or an address, and a port (RFC 9110, 7.2).
const authorityPattern = `^([a-z0-9._-]+|\[[0-9a-f:.]+\])?(:[0-9]*)?$`

// host refuses a request that does not say what it is for (RFC 9112, 3.2), and
// one that says so only in its target, where nothing here looks and a server
// does: HAProxy holds the two to be the same where there are both.
func (r *renderer) host() {
	r.line("    http-request deny deny_status 400 if !{ req.hdr(host) -m found } { req.ver -m str 1.1 }")
	r.line("    http-request deny deny_status 400 if !{ req.hdr(host) -m found } !{ url -m beg / }")
}

// headers tells the backend who the client is, and lets no client say so
// itself.
func (r *renderer) headers(l listener) {
	// What a client names in Connection, a proxy behind would take away: with
	// it, the headers set here. Of what is hop by hop only upgrades are kept,
	// save that to clear-text HTTP/2, whose requests would pass unseen.
	r.line("    http-request del-header upgrade if { req.hdr(upgrade) -m sub -i h2c }")
	r.line("    http-request del-header http2-settings")
	r.line("    http-request set-header connection upgrade if { req.hdr(upgrade) -m found }")
	r.line("    http-request del-header connection unless { req.hdr(upgrade) -m found }")
	r.line("    http-request del-header ^(keep-alive|proxy|proxy-connection)$ -m reg")
	// The names in use for what a proxy says of its client.
	r.line("    http-request del-header ^(x-)?(ssl-)?client-(cert|verify|dn|subject|s-dn|i-dn|issuer|serial|fingerprint) -m reg")
	r.line("    http-request del-header ^(x-ssl-|ssl-client|x-forwarded-|x-real-ip$|x-arr-clientcert$|forwarded$) -m reg")
	// One socket takes both families, and shows IPv4 as ::ffff:192.0.2.1.
	r.line("    http-request set-header X-Forwarded-For %%[src,regsub(^::ffff:,)]")
	r.line("    http-request set-header X-Forwarded-Proto https")
	r.line("    http-request set-header X-Forwarded-Host %%[req.hdr(host)] if { req.hdr(host) -m found }")
	a := l.ClientAuthentication
	if a == nil {
		return
	}
	const presented = "{ ssl_c_used } { ssl_c_verify 0 }"
	r.line("    http-request set-header X-Client-Cert-Verified NONE")
	r.line("    http-request set-header X-Client-Cert-Verified SUCCESS if %s", presented)
	r.line("    http-request set-header X-Client-Cert-Subject %%[ssl_c_s_dn(,0,rfc2253)] if %s", presented)
	r.line("    http-request set-header X-Client-Cert-Serial %%[ssl_c_serial,hex,lower] if %s", presented)
	r.line("    http-request set-header X-Client-Cert-Fingerprint %%[ssl_c_der,sha2(256),hex,lower] if %s", presented)
	if a.ForwardCertificate {
		r.line("    http-request set-header Client-Cert :%%[ssl_c_der,base64]: if %s", presented)
	}
}
