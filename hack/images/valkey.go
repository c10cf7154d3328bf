package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

func valkeyVersion(ctx context.Context, c *container) (string, error) {
	out, err := c.exec(ctx, "valkey-server", "--version")
	if err == nil && !strings.Contains(out, " v=8.1.") {
		err = fmt.Errorf("it said %q", out)
	}
	return strings.TrimSpace(out), err
}

// valkeyHandshake connects to the image's server with a client that offers the hybrid group alone.
func valkeyHandshake(ctx context.Context, c *container) (string, error) {
	authorities, err := valkeyCertificate(c.files)
	if err != nil {
		return "", err
	}
	const address = "127.0.73.1" // of which no client is given a port
	l, err := net.Listen("tcp", address+":0")
	if err != nil {
		return "", err
	}
	port := l.Addr().(*net.TCPAddr).Port
	l.Close()

	ctx, stop := context.WithCancel(ctx)
	ended := make(chan string, 1)
	go func() {
		out, err := c.exec(ctx, "valkey-server", "--bind", address, "--port", "0", "--tls-port", strconv.Itoa(port), "--save", "",
			"--dir", "/tmp", "--tls-cert-file", "/mnt/valkey.crt", "--tls-key-file", "/mnt/valkey.key", "--tls-auth-clients", "no")
		ended <- fmt.Sprintf("it ended: %v: %s", err, lastLines([]byte(out), 5))
	}()
	said := ""
	defer func() {
		stop()
		if said == "" {
			<-ended // its mounts end with it
		}
	}()
	dialer := tls.Dialer{NetDialer: &net.Dialer{Timeout: time.Minute}, Config: &tls.Config{
		RootCAs: authorities, ServerName: "probe.example", MinVersion: tls.VersionTLS13, CurvePreferences: []tls.CurveID{tls.X25519MLKEM768}}}
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
		conn, err := dialer.DialContext(ctx, "tcp", net.JoinHostPort(address, strconv.Itoa(port)))
		if err == nil {
			defer conn.Close()
			state := conn.(*tls.Conn).ConnectionState()
			return fmt.Sprintf("%s, %s", tls.VersionName(state.Version), state.CurveID), nil
		}
		select {
		case said = <-ended:
			return "", fmt.Errorf("no handshake: %s", said)
		default:
		}
		if time.Now().After(deadline) {
			return "", fmt.Errorf("no handshake: %w", err)
		}
	}
}

// valkeyCertificate writes a certificate and its key into a folder, for everybody to read.
func valkeyCertificate(folder string) (*x509.CertPool, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), DNSNames: []string{"probe.example"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, err
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	certificate := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	for name, content := range map[string][]byte{"valkey.crt": certificate, "valkey.key": pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private})} {
		if err := os.WriteFile(filepath.Join(folder, name), content, 0o644); err != nil {
			return nil, err
		}
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(certificate)
	return pool, nil
}
