package helm

import (
	"fmt"
	"net/url"
	"os"
	"strconv"
	"strings"
	"testing"

	apps "k8s.io/api/apps/v1"
	"sigs.k8s.io/yaml"
)

// The part of a Cluster of CloudNativePG that the values depend on. The types of its operator are not used here: their module
// cannot be fetched everywhere.
type cluster struct {
	APIVersion string
	Kind       string
	Metadata   struct{ Name string }
	Spec       struct {
		Instances int
		Bootstrap struct {
			Initdb struct{ Database, Owner string }
		}
		Postgresql struct{ Parameters map[string]string }
	}
}

// Connections of all pods besides database.max_connections of each.
const furtherConnections = 4

// Maximum number of connections of all pods, with `surge` further pods of each service.
func countConnections(t *testing.T, objects []object, surge int) int {
	t.Helper()
	sum := 0
	for deployment := range valuesOf[apps.Deployment](objects) {
		for _, variable := range deployment.Spec.Template.Spec.Containers[0].Env {
			if variable.Name == "EVENKEELD_DATABASE__MAX_CONNECTIONS" {
				most, err := strconv.Atoi(variable.Value)
				if err != nil {
					t.Fatal(err)
				}
				sum += (int(*deployment.Spec.Replicas) + surge) * (most + furtherConnections)
			}
		}
	}
	return sum
}

func TestTheValuesForCloudNativePGFitItsCluster(t *testing.T) {
	folder := chartFolder + "/examples/cloudnative-pg"
	text, err := os.ReadFile(folder + "/cluster.yaml")
	if err != nil {
		t.Fatal(err)
	}
	converted, err := yaml.YAMLToJSONStrict(text)
	if err != nil {
		t.Fatal(err)
	}
	var database cluster
	if err := yaml.Unmarshal(converted, &database); err != nil {
		t.Fatal(err)
	}
	var values struct {
		Database struct {
			URL                      string
			PasswordSecret, CaSecret struct{ Name, Key string }
		}
	}
	valuesText, err := os.ReadFile(folder + "/values.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.Unmarshal(valuesText, &values); err != nil {
		t.Fatal(err)
	}
	address, err := url.Parse(values.Database.URL)
	if err != nil {
		t.Fatal(err)
	}
	name, initdb := database.Metadata.Name, database.Spec.Bootstrap.Initdb
	for what, pair := range map[string][2]string{
		"kind":         {database.APIVersion + " " + database.Kind, "postgresql.cnpg.io/v1 Cluster"},
		"host":         {address.Host, name + "-rw"},
		"database":     {address.Path, "/" + initdb.Database},
		"role":         {address.User.Username(), initdb.Owner},
		"password":     {values.Database.PasswordSecret.Name + " " + values.Database.PasswordSecret.Key, name + "-app password"},
		"authority":    {values.Database.CaSecret.Name + " " + values.Database.CaSecret.Key, name + "-ca ca.crt"},
		"sslmode":      {address.Query().Get("sslmode"), "verify-full"},
		"egress":       {fmt.Sprint(strings.Count(string(valuesText), "cnpg.io/cluster: "+name+"\n")), "1"},
		"wait in text": {fmt.Sprint(strings.Count(string(text), "cluster/"+name+"\n")), "1"},
	} {
		if pair[0] != pair[1] {
			t.Errorf("%s is %q, expected %q", what, pair[0], pair[1])
		}
	}
}

func TestTheConnectionsFitTheDatabase(t *testing.T) {
	objects, err := renderObjects(loadChart(t), nil, release)
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile(root + "/docs/kubernetes.md")
	if err != nil {
		t.Fatal(err)
	}
	if sum := countConnections(t, objects, 0); !strings.Contains(string(page), fmt.Sprintf("use up to %d;", sum)) {
		t.Errorf("docs/kubernetes.md does not say that all pods use up to %d connections", sum)
	}
	// Three connections of Postgres are for superusers, and the migration needs some.
	if sum := countConnections(t, objects, 1); sum+10 > 200 {
		t.Errorf("%d connections are too many for the advised 200", sum)
	}
}
