Feature: Fork Task
  Branches at the same time

  Scenario: Without a competition there is the output of each
    Given a workflow with definition:
    """yaml
    document: { dsl: '1.0.3', namespace: default, name: fork, version: '1.0.0' }
    do:
      - paint:
          fork:
            branches:
              - setRed: { set: { color: red } }
              - setGreen: { call: paint }
          output: { as: '${ {colors: map(.color)} }' }
    """
    And calls of 'paint' answer 200:
    """yaml
    color: green
    """
    When the workflow is executed
    Then the workflow should complete
    And the workflow output should have a 'colors' property containing 2 items
    And the workflow output should have a 'colors' property with value:
    """yaml
    [red, green]
    """
