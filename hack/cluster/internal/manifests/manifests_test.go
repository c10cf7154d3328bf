package manifests

import (
	"strings"
	"testing"
)

func TestObjectsNameTheirImageAndAddress(t *testing.T) {
	for name, render := range map[string]func(string) ([]byte, error){"base": Base, "metrics-server": MetricsServer} {
		b, err := render("qtls.local/cluster/x:1")
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(b), "image: qtls.local/cluster/x:1\n") || strings.Contains(string(b), "<no value>") {
			t.Errorf("%s:\n%s", name, b)
		}
	}
	b, err := Base("x")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(b), "clusterIP: 10.72.0.10\n") {
		t.Error("the DNS Service has not the address that kubelets give to pods")
	}
}
