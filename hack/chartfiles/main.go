// Command chartfiles derives the chart's generated files from what
// controller-gen wrote to config/: the CustomResourceDefinitions, and the
// operator's rights, split by where they are needed.
//
//	go run ./hack/chartfiles      (from the root of the repository)
package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"

	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"
)

func main() {
	if err := run("config", filepath.Join("charts", "qtls", "files")); err != nil {
		fmt.Fprintln(os.Stderr, "chartfiles:", err)
		os.Exit(1)
	}
}

func run(config, files string) error {
	definitions, err := copyDefinitions(filepath.Join(config, "crd"), filepath.Join(files, "crds"))
	if err != nil {
		return err
	}
	data, err := os.ReadFile(filepath.Join(config, "rbac", "role.yaml"))
	if err != nil {
		return err
	}
	role := rbacv1.ClusterRole{}
	if err := yaml.UnmarshalStrict(data, &role); err != nil {
		return err
	}
	out, err := yaml.Marshal(split(role.Rules, clusterScoped(definitions)))
	if err != nil {
		return err
	}
	const header = "# Generated from config/rbac/role.yaml by hack/chartfiles. DO NOT EDIT.\n"
	return os.WriteFile(filepath.Join(files, "rules.yaml"), append([]byte(header), out...), 0o644)
}

// copyDefinitions makes the target folder hold exactly the definitions of the
// source folder, and returns them.
func copyDefinitions(source, target string) ([]apiextensionsv1.CustomResourceDefinition, error) {
	if err := os.RemoveAll(target); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(target, 0o755); err != nil {
		return nil, err
	}
	paths, err := filepath.Glob(filepath.Join(source, "*.yaml"))
	if err != nil {
		return nil, err
	}
	if len(paths) == 0 {
		return nil, fmt.Errorf("%s holds no definitions; controller-gen writes them: make generate", source)
	}
	var definitions []apiextensionsv1.CustomResourceDefinition
	for _, path := range paths {
		data, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		d := apiextensionsv1.CustomResourceDefinition{}
		if err := yaml.UnmarshalStrict(data, &d); err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		definitions = append(definitions, d)
		data = bytes.TrimPrefix(data, []byte("---\n"))
		if err := os.WriteFile(filepath.Join(target, filepath.Base(path)), data, 0o644); err != nil {
			return nil, err
		}
	}
	return definitions, nil
}
