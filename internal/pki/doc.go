// Package pki makes and checks what PKCS #10 (RFC 2986) and X.509 (RFC 5280)
// define: keys, certificate requests, certificates and chains. It talks to
// nothing, and takes the time from its caller. The cryptography is Go's own,
// and OpenSSL's where Go lacks the algorithm (package openssl).
package pki
