package pki

import (
	"crypto/x509"
	"encoding/base64"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"

	"qtls.dev/qtls/hack/cluster/internal/topology"
)

// The kubeconfigs that Write makes; each is in a file NAME.kubeconfig.
const (
	Admin             = "admin"
	ControllerManager = "kube-controller-manager"
	Scheduler         = "kube-scheduler"
	Proxy             = "kube-proxy"
	Kwok              = "kwok"
)

// Kubelet is the name of a node's kubeconfig.
func Kubelet(n topology.Node) string { return "kubelet-" + n.Name() }

// KubeletServing is the name of the certificate that a node's kubelet serves with.
func KubeletServing(n topology.Node) string { return "kubelet-serving-" + n.Name() }

// Write makes everything of one cluster in dir, which must exist. hostAPI is the API server's
// address on the host; its kubeconfig is returned.
func Write(dir string, nodes []topology.Node, hostAPI string, now time.Time) (adminKubeconfig []byte, err error) {
	ca, err := NewAuthority(dir, "ca", now)
	if err != nil {
		return nil, err
	}
	frontProxy, err := NewAuthority(dir, "front-proxy-ca", now)
	if err != nil {
		return nil, err
	}
	if err := NewServiceAccountKey(dir); err != nil {
		return nil, err
	}
	for _, c := range []struct {
		by *Authority
		Cert
	}{
		{ca, apiServer()},
		{ca, client("apiserver-kubelet-client", "kube-apiserver-kubelet-client", "system:masters")},
		{frontProxy, client("front-proxy-client", "front-proxy-client")},
	} {
		if _, _, err := c.by.Issue(c.Cert); err != nil {
			return nil, err
		}
	}
	inside := fmt.Sprintf("https://%s:%d", topology.ControlPlaneIP, topology.APIPort)
	for _, c := range users(nodes) {
		cert, key, err := ca.Issue(c)
		if err != nil {
			return nil, err
		}
		if err := os.WriteFile(filepath.Join(dir, c.Name+".kubeconfig"), Kubeconfig(inside, ca.PEM, cert, key), 0o600); err != nil {
			return nil, err
		}
		if c.Name == Admin {
			adminKubeconfig = Kubeconfig(hostAPI, ca.PEM, cert, key)
		}
	}
	for _, n := range nodes {
		if _, _, err := ca.Issue(kubeletServing(n)); err != nil {
			return nil, err
		}
	}
	return adminKubeconfig, nil
}

// users are the clients of the API server that get a kubeconfig.
func users(nodes []topology.Node) []Cert {
	certs := []Cert{
		client(Admin, "kubernetes-admin", "system:masters"),
		client(ControllerManager, "system:kube-controller-manager"),
		client(Scheduler, "system:kube-scheduler"),
		client(Proxy, "system:kube-proxy"),
		client(Kwok, "kwok", "system:masters"), // kwok plays kubelets: it writes nodes and all pods' status
	}
	for _, n := range nodes {
		certs = append(certs, client(Kubelet(n), "system:node:"+n.Name(), "system:nodes"))
	}
	return certs
}

func client(name, commonName string, groups ...string) Cert {
	return Cert{Name: name, CommonName: commonName, Organization: groups, Usage: x509.ExtKeyUsageClientAuth}
}

func apiServer() Cert {
	service := "kubernetes.default.svc." + topology.ClusterDomain
	return Cert{
		Name:       "apiserver",
		CommonName: "kube-apiserver",
		Usage:      x509.ExtKeyUsageServerAuth,
		DNSNames:   []string{"localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc", service},
		IPs:        []net.IP{net.IPv4(127, 0, 0, 1), topology.ControlPlaneIP.AsSlice(), topology.APIServiceIP.AsSlice()},
	}
}

func kubeletServing(n topology.Node) Cert {
	return Cert{
		Name:         KubeletServing(n),
		CommonName:   "system:node:" + n.Name(),
		Organization: []string{"system:nodes"},
		Usage:        x509.ExtKeyUsageServerAuth,
		DNSNames:     []string{n.Name()},
		IPs:          []net.IP{n.IP().AsSlice()},
	}
}

// Kubeconfig renders a kubeconfig with one cluster, one user and one context.
func Kubeconfig(server string, ca, cert, key []byte) []byte {
	b64 := base64.StdEncoding.EncodeToString
	return fmt.Appendf(nil, `apiVersion: v1
kind: Config
clusters:
- name: qtls
  cluster:
    server: %s
    certificate-authority-data: %s
users:
- name: qtls
  user:
    client-certificate-data: %s
    client-key-data: %s
contexts:
- name: qtls
  context:
    cluster: qtls
    user: qtls
current-context: qtls
`, server, b64(ca), b64(cert), b64(key))
}
