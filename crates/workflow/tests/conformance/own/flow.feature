Feature: Flow Directives
  The order of tasks, and jumps

  Scenario: Tasks run one after another
    Given a workflow with definition:
    """yaml
    document: { dsl: '1.0.3', namespace: default, name: flow, version: '1.0.0' }
    do:
      - setRed: { set: { colors: '${ .colors + ["red"] }' } }
      - setGreen: { set: { colors: '${ .colors + ["green"] }' } }
      - setBlue: { set: { colors: '${ .colors + ["blue"] }' } }
    """
    When the workflow is executed
    Then the workflow should complete with output:
    """yaml
    colors: [red, green, blue]
    """
    And 'setRed' should run first
    And 'setGreen' should run after 'setRed'
    And 'setGreen' should run before 'setBlue'
    And setBlue should run last

  Scenario: A task can lead past others
    Given a workflow with definition:
    """yaml
    document: { dsl: '1.0.3', namespace: default, name: flow, version: '1.0.0' }
    do:
      - setRed: { set: { colors: [red] }, if: .short, then: setBlue }
      - setGreen: { set: { colors: '${ .colors + ["green"] }' } }
      - setBlue: { set: { colors: '${ .colors + ["blue"] }' }, then: end }
    """
    And given the workflow input is:
    """yaml
    short: true
    """
    When the workflow is executed
    Then the workflow should complete with output:
    """yaml
    colors: [red, blue]
    """
    And 'setGreen' should not have executed
    And 'setBlue' should have executed 1 times

  Scenario: A task that leads back makes a loop
    Given a workflow with definition:
    """yaml
    document: { dsl: '1.0.3', namespace: default, name: flow, version: '1.0.0' }
    do:
      - count: { set: { n: '${ .n + 1 }' } }
      - enough: { switch: [ no: { when: '.n < 3', then: count } ] }
    """
    When the workflow is executed
    Then the workflow should complete with output:
    """yaml
    n: 3
    """
    And 'count' should have executed 3 times
