// Package openssltest gives tests the openssl of the gateway image, with the
// provider.
package openssltest

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

// Use puts it on the PATH; the test is skipped where it is not built.
func Use(t testing.TB) {
	t.Helper()
	root, module := os.Getenv("QTLS_GATEWAY_ROOTFS"), os.Getenv("QTLS_PROVIDER")
	if root == "" || module == "" {
		t.Skip("QTLS_GATEWAY_ROOTFS and QTLS_PROVIDER are not set: `make test-unit` sets them to the gateway image's root file system and the OpenSSL provider's module")
	}
	script := fmt.Sprintf("#!/bin/sh\nOPENSSL_CONF='%[1]s/etc/ssl/openssl.cnf' OPENSSL_MODULES='%[2]s' exec '%[1]s/lib64/ld-linux-x86-64.so.2' --library-path '%[1]s/usr/lib/x86_64-linux-gnu' '%[1]s/usr/bin/openssl' \"$@\"\n",
		root, filepath.Dir(module))
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "openssl"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+string(os.PathListSeparator)+os.Getenv("PATH"))
}
