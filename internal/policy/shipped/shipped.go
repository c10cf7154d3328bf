// Package shipped holds the QTLSPolicies that come with Q-TLS. A shipped policy
// never changes: a change is a new file under a new name, such as hybrid-v2, so
// that no upgrade cuts a client off.
package shipped

import (
	"embed"
	"fmt"
	"io/fs"

	"sigs.k8s.io/yaml"

	"qtls.dev/qtls/api/v1alpha1"
)

//go:embed *.yaml
var files embed.FS

// Policies are the shipped policies, in the order of their names.
func Policies() ([]*v1alpha1.QTLSPolicy, error) {
	names, err := fs.Glob(files, "*.yaml")
	if err != nil {
		return nil, err
	}
	var policies []*v1alpha1.QTLSPolicy
	for _, name := range names {
		data, err := files.ReadFile(name)
		if err != nil {
			return nil, err
		}
		p := &v1alpha1.QTLSPolicy{}
		if err := yaml.UnmarshalStrict(data, p); err != nil {
			return nil, fmt.Errorf("shipped policy %s: %w", name, err)
		}
		policies = append(policies, p)
	}
	return policies, nil
}
