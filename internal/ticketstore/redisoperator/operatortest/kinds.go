// Package operatortest stands in for the Redis Operator in tests: its kinds, and
// servers as it runs them.
package operatortest

import (
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"qtls.dev/qtls/internal/ticketstore/redisoperator"
)

// Fields of the specs that matter here, with their types, as the Redis
// Operator's release v0.26 documents them for v1beta2: in its CRD reference, and
// in api/common/v1beta2, api/redisreplication/v1beta2 and
// api/rediscluster/v1beta2. "object" and "objects" end in what Kubernetes
// defines. The Sentinels' placement and security contexts are of later releases.
var fields = map[string]string{
	"RedisReplication": shared + `
redisConfig.additionalRedisConfig string
redisConfig.dynamicConfig strings
redisConfig.maxMemoryPercentOfLimit integer
pdb.enabled boolean
pdb.minAvailable integer
pdb.maxUnavailable integer
securityContext object
affinity object
nodeSelector object
tolerations objects
topologySpreadConstraints objects
terminationGracePeriodSeconds integer
sentinel.size integer
sentinel.image string
sentinel.imagePullPolicy string
sentinel.imagePullSecrets objects
sentinel.resources object
sentinel.redisSecret.name string
sentinel.redisSecret.key string`,
	"RedisCluster": shared + `
clusterVersion string
port integer
persistenceEnabled boolean` + role("redisLeader") + role("redisFollower"),
}

const shared = `
clusterSize integer
kubernetesConfig.image string
kubernetesConfig.imagePullPolicy string
kubernetesConfig.imagePullSecrets objects
kubernetesConfig.resources object
kubernetesConfig.redisSecret.name string
kubernetesConfig.redisSecret.key string
kubernetesConfig.updateStrategy object
TLS.ca string
TLS.cert string
TLS.key string
TLS.secret object
acl.secret object
podSecurityContext object
priorityClassName string
serviceAccountName string
storage object`

func role(name string) string {
	return strings.ReplaceAll(`
ROLE.replicas integer
ROLE.redisConfig.additionalRedisConfig string
ROLE.pdb.enabled boolean
ROLE.pdb.minAvailable integer
ROLE.pdb.maxUnavailable integer
ROLE.securityContext object
ROLE.resources object
ROLE.affinity object
ROLE.nodeSelector object
ROLE.tolerations objects
ROLE.topologySpreadConstraints objects
ROLE.terminationGracePeriodSeconds integer`, "ROLE", name)
}

// status of both kinds.
const status = `
connectionInfo.host string
connectionInfo.port integer
connectionInfo.masterName string
masterNode string
state string
reason string`

// Kinds of the Redis Operator's that gateways use, as definitions which allow
// those fields and no others.
func Kinds() []*unstructured.Unstructured {
	var all []*unstructured.Unstructured
	for kind, spec := range fields {
		plural := strings.ToLower(kind) + "s"
		u := &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
			"metadata": map[string]any{"name": plural + "." + redisoperator.GroupVersion.Group},
			"spec": map[string]any{
				"group": redisoperator.GroupVersion.Group, "scope": "Namespaced",
				"names": map[string]any{"kind": kind, "listKind": kind + "List", "plural": plural, "singular": strings.ToLower(kind)},
				"versions": []any{map[string]any{
					"name": redisoperator.GroupVersion.Version, "served": true, "storage": true,
					"subresources": map[string]any{"status": map[string]any{}},
					"schema": map[string]any{"openAPIV3Schema": map[string]any{"type": "object", "properties": map[string]any{
						"spec": schema(spec), "status": schema(status),
					}}},
				}},
			},
		}}
		all = append(all, u)
	}
	return all
}

// schema of lines with a path and a type.
func schema(lines string) map[string]any {
	root := map[string]any{"type": "object", "properties": map[string]any{}}
	for path, kind := range table(lines) {
		at := root
		for name := range strings.SplitSeq(path, ".") {
			properties := at["properties"].(map[string]any)
			if properties[name] == nil {
				properties[name] = map[string]any{"type": "object", "properties": map[string]any{}}
			}
			at = properties[name].(map[string]any)
		}
		delete(at, "properties")
		switch at["type"] = kind; kind {
		case "object":
			at["x-kubernetes-preserve-unknown-fields"] = true
		case "objects":
			at["type"], at["items"] = "array", map[string]any{"type": "object", "x-kubernetes-preserve-unknown-fields": true}
		case "strings":
			at["type"], at["items"] = "array", map[string]any{"type": "string"}
		}
	}
	return root
}

func table(lines string) map[string]string {
	all := map[string]string{}
	for line := range strings.Lines(strings.TrimSpace(lines)) {
		path, kind, _ := strings.Cut(strings.TrimSpace(line), " ")
		all[path] = kind
	}
	return all
}

// Undocumented are the paths in an object's spec that the Redis Operator does
// not document, or that are of another type, with what is wrong.
func Undocumented(o *unstructured.Unstructured) []string {
	return undocumented(o.Object["spec"], "", table(fields[o.GetKind()]))
}

func undocumented(value any, path string, known map[string]string) []string {
	kind, leaf := known[path]
	found := fmt.Sprintf("%T", value)
	switch v := value.(type) {
	case bool:
		found = "boolean"
	case string:
		found = "string"
	case int64:
		found = "integer"
	case []any:
		found = "strings"
		if len(v) > 0 {
			if _, ok := v[0].(map[string]any); ok {
				found = "objects"
			}
		}
	case map[string]any:
		found = "object"
		if !leaf {
			var all []string
			for name, inner := range v {
				all = append(all, undocumented(inner, strings.TrimPrefix(path+"."+name, "."), known)...)
			}
			return all
		}
	}
	switch {
	case !leaf:
		return []string{path}
	case found != kind:
		return []string{fmt.Sprintf("%s: %s, not %s", path, found, kind)}
	}
	return nil
}
