// Package e2e tests Q-TLS on a real cluster, as its users use it: through the API, and with TLS clients.
//
//	make test-e2e                 a cluster, the images, cert-manager, the chart, all tests; then the cluster is taken down
//	make test-e2e E2E=TestFaults  only the tests that match
//
// On a cluster that is there already:
//
//	KUBECONFIG=... E2E_INSTALL=none go test -tags e2e ./e2e -run TestQuickstart -v
//
// The environment says how:
//
//	KUBECONFIG      the cluster; needed
//	E2E_INSTALL     "none" when cert-manager and the chart are installed, which allows peers the image of nginx, and the
//	                images are on the nodes; anything else installs them, by hack/install
//	QTLS_CLUSTER    the program qtls-cluster (default: bin/qtls-cluster)
//	ARTIFACTS       a folder for objects and logs of what failed (default: a temporary one, whose path is printed)
//
// Each test has a namespace of its own, where only restricted pods may run. Lines that start with RESULT hold the
// counts and figures. Every client verifies chain and name, from the CA that the test made.
package e2e
