package machine

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"time"
)

// waitFor returns when what a Daemon's After names answers. It waits for ever, as the daemon does.
func waitFor(after string) error {
	answers, err := probe(after)
	if err != nil {
		return err
	}
	for !answers() {
		time.Sleep(20 * time.Millisecond)
	}
	return nil
}

// probe returns a function that says whether what after names answers now.
func probe(after string) (answers func() bool, err error) {
	u, err := url.Parse(after)
	if err != nil {
		return nil, err
	}
	switch u.Scheme {
	case "unix":
		return func() bool { return accepts(u.Path) }, nil
	case "https":
		ca, err := os.ReadFile(PKIDir + "/ca.crt")
		if err != nil {
			return nil, err
		}
		return pageProbe(after, ca)
	}
	return nil, fmt.Errorf("scheme %q is not unix or https", u.Scheme)
}

func accepts(socket string) bool {
	c, err := net.Dial("unix", socket)
	if err != nil {
		return false
	}
	c.Close()
	return true
}

func pageProbe(page string, ca []byte) (func() bool, error) {
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(ca) {
		return nil, errors.New("the CA's certificate cannot be read")
	}
	client := &http.Client{
		Timeout:   10 * time.Second,
		Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}, DisableKeepAlives: true},
	}
	return func() bool {
		resp, err := client.Get(page)
		if err != nil {
			return false
		}
		resp.Body.Close()
		return resp.StatusCode == http.StatusOK
	}, nil
}
